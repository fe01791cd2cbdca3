"""From requests to engine work and back: prompts, parameters, assembly, answers."""
