"""`python prepare.py FOLDER`: saves a data set with columns of its own."""

import sys

import datasets

ROWS = [
    {"question": f"What is {one} times {other}?", "solution": {"text": str(one * other)}}
    for one in range(2, 10)
    for other in range(2, 10)
]

datasets.Dataset.from_list(ROWS).save_to_disk(sys.argv[1])
