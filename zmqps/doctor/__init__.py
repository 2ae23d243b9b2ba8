"""Problems that can be found before a run, by examining each host."""
