"""The ``nanotrio`` command; ``nanotrio_cli.main.main`` is its entry."""
