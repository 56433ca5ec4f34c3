"""One script a claim; each prints its result as one JSON object on its last line."""
