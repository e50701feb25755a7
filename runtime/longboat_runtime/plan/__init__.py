"""What a job takes, known before it starts: a rank traced without memory, and figures compared with what spec and templates give."""
