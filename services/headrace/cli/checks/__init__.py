"""What `headrace doctor` looks at: one file a subject, each giving a list of findings."""
