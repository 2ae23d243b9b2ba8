"""Who is there: how nodes join, which place and rank each has, and how they go."""
