"""What an evaluation found: rows of figures, the table, the page, the files."""
