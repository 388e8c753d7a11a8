"""Finds the file that backs an address according to the kernel, for hosts that examine their own code."""


def backing_file(address):
    """Returns the file that backs the page of `address`, or "nothing" for an anonymous mapping."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(text, 16) for text in line.split()[0].split("-"))
            if start <= address < end:
                return (line.split(maxsplit=5)[5:] or ["nothing"])[0].strip()
    return "no mapping"


def count_mappings():
    with open("/proc/self/maps") as maps:
        return sum(1 for _ in maps)
