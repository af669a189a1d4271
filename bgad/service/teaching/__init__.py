"""Teaching jobs, which run in processes of their own."""
