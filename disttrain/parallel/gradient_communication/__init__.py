"""Gradient communication: how the gradients of DDP travel. One module a scheme, behind one interface.

A scheme is a file `disttrain/parallel/gradient_communication/<scheme>.py` with a function
`build(options, world)` that returns a `Scheme` (`base.py`), and its name in `GradientCommunicationConfig`.
"""
