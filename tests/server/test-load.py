import sys
print("1..1\nok 1 # SKIP to come")
