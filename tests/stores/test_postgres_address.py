"""Addresses of stores in Postgres: what they hold, what is shown of them, and what is never shown."""

from __future__ import annotations

import pytest

from nanotrio.errors import UsageError
from nanotrio.stores.address import parse_url
from nanotrio.stores.postgres_address import parse_postgres_url

SHOWN = {
    "postgres://me:s3cret@host:5433/db?swarm=a": "postgres://me@host:5433/db?swarm=a",
    "postgresql://me@host/db?sslmode=require&swarm=a.b-c_9": "postgres://me@host/db?swarm=a.b-c_9",
    "postgres://host/db?swarm=a&password=s3cret&user=me": "postgres://me@host/db?swarm=a",
    "postgres://me:s3cret%2F%40@[::1]:5432/db?swarm=a": "postgres://me@[::1]:5432/db?swarm=a",
    "postgres://one:1,two:2/db?swarm=a": "postgres://one:1,two:2/db?swarm=a",
    "postgres:///db?host=/run/postgresql&user=me&swarm=a": "postgres:///db?host=/run/postgresql&user=me&swarm=a",
    "postgres://m%20e@host/d%3Fb?swarm=a": "postgres://m%20e@host/d%3Fb?swarm=a",
    "postgres:///?swarm=a": "postgres:///?swarm=a",
    "postgres+rows://me:s3cret@host/db?swarm=a": "postgres+rows://me@host/db?swarm=a",
    "postgresql+rows://me@host/db?sslmode=require&swarm=a": "postgres+rows://me@host/db?swarm=a",
}


@pytest.mark.parametrize(("url", "shown"), SHOWN.items())
def test_an_address_is_shown_without_its_password_and_can_be_read_again(url: str, shown: str) -> None:
    address = parse_url(url)
    assert address.url == shown
    assert parse_url(shown).url == shown
    assert "s3cret" not in repr(address)


def test_what_libpq_takes_is_handed_to_it_and_what_is_ours_is_not() -> None:
    parameters = parse_postgres_url(
        "postgres://me:s3cret%2F%40@host:5433/db?sslmode=require&swarm=a&application_name=mine"
    ).parameters
    wanted = {"user": "me", "password": "s3cret/@", "host": "host", "port": "5433", "dbname": "db"}
    wanted |= {"sslmode": "require", "application_name": "mine"}
    assert wanted.items() <= parameters.items()
    assert "swarm" not in parameters


def test_two_swarms_of_a_database_are_two_stores_with_files_of_their_own() -> None:
    one, two = parse_url("postgres://host/db?swarm=one"), parse_url("postgres://host/db?swarm=two")
    assert one.token_text != two.token_text
    assert one.output_directory != two.output_directory
    assert one.output_directory.is_absolute()
    rows = parse_url("postgres+rows://host/db?swarm=one")
    assert (rows.token_text, rows.path) == (one.token_text, one.path), "the same store"
    assert parse_url("postgresql://x:s3cret@host/db?swarm=one").path == parse_url("postgres://x@host/db?swarm=one").path


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgres://host/db", "names its swarm at the end"),
        ("postgres:host?swarm=a", "cannot be read"),
        ("postgres://me:s3cret@x@host/db?swarm=a", "written as %40"),
        ("postgres://me:s3cret/x@host/db?swarm=a", "written as %40"),
        ("postgres://me:s3cret%zz@host/db?swarm=a", "cannot be read"),
        ("postgres://me:s3cret@host:port/db?swarm=a", "cannot be read"),
        ("postgres://me:s3cret@host/db?nonsense=1&swarm=a", "cannot be read"),
        ("postgres://me:s3cret@[::1/db?swarm=a", "cannot be read"),
        ("postgres://me:s3cret@host/db?swarm=", "cannot name a swarm"),
        ("postgres://me:s3cret@host/db?swarm=a&swarm=b", "cannot name a swarm"),
        ("postgres://me:s3cret@host/db?swarm=x%22y", "cannot name a swarm"),
        ("postgres://me:s3cret@host/db?swarm=" + "x" * 51, "cannot name a swarm"),
    ],
)
def test_an_address_that_cannot_be_used_says_what_to_write_and_never_the_password(url: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
