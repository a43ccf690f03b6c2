"""``kvik inspect``: what the techniques rest on, measured on one model and one text.

``run`` reads the text through the model, ``observe`` listens at the cache, ``attention``, ``chosen``
and ``stored`` make the figures of a layer, ``findings`` says in sentences what they mean, ``page``
and ``sheets`` write them down.
"""
