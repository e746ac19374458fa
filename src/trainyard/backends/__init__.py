"""Where machines come from. Provider words stay behind their provider's module."""
