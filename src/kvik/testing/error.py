"""What a conformance suite raises."""


class ConformanceError(AssertionError):
    """A law is broken; the text says which, by what, and by how much."""
