"""Compares what a round policy trained with what was first launched: the bias of response lengths, with its uncertainty. Pure."""
