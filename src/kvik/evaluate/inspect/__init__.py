"""``kvik inspect``: what the techniques rest on, measured on one model and one text.

``run`` reads the text through the model and ``observe`` listens at the cache; ``attention``,
``chosen``, ``stored`` and ``coded`` make the figures of a layer and ``document`` writes them down.
``findings`` says in sentences what they mean; ``drawings``, ``page``, ``table`` and ``sheets`` show
them.
"""
