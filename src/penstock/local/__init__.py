"""Local: what penstock finds or starts on this machine."""
