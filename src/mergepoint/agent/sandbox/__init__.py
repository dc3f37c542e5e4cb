"""What confines code: bubblewrap, a Python subset, and a process that nothing confines."""
