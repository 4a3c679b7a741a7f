"""Runs on each compute node: the agent, torchrun under it, the rendezvous, facts about the node."""
