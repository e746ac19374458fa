"""What all routes share: who asks, how answers and errors look, and what guards every request."""
