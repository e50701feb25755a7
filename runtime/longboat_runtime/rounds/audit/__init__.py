"""Whether what a round policy trained is what was first launched: the bias of response lengths, with its uncertainty. Pure."""
