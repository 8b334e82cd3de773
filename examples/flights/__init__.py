"""Real flights out of New York in 2013: will this one arrive 15 or more minutes late?

`prepare.prepare` does it all: data -> features -> training -> declarations, artifacts and measured quality. The labels
are real, so what is printed about quality is measured, not claimed.
"""
