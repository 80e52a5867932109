"""Programs that stand for others, which no test can have."""
