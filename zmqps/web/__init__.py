"""HTTP for browsers and scrapers: one server, whose clients cannot hold up a node or each other."""
