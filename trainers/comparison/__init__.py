"""Which of several ways to train is better: --mode=compare.

`arms` says what is compared and `schedule` in which order; `execution` runs it.
From the folders of the runs alone, `figures` reads what they came to, `statistics`
and `verdicts` what follows from it, and `report` shows it.
"""
