"""FSDP2 ranks: samples and advantages in, one optimizer step and its metrics out."""
