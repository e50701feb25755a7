"""Engines that make samples: vLLM in Ray actors behind one interface, a router and the fleet."""
