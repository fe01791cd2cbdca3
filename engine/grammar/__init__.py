"""Grammars that generated text must follow.

A ``GrammarSpec`` (engine/types.py) says what is wanted; ``GrammarCompiler`` checks and compiles
it, off the event loop; the result goes into ``GenerationRequest.grammar``. The runner keeps one
matcher per sequence and masks the sampler with it.

A grammar that mixes fixed text with JSON is of kind ``lark``, with schemas embedded::

    GrammarSpec("lark", 'start: "<call>" arguments "</call>"\narguments: %json {"type": "object"}')

White space between the tokens of JSON is bounded in embedded schemas too, and the same limits
hold for them.
"""
