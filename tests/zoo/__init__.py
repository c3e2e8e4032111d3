"""A zoo of connectors: an honest one, and wrong ones that break one rule each as a real connector did."""
