"""The code that runs inside SGLang's scheduler processes: standard library, torch and SGLang itself, nothing else."""
