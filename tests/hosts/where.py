"""What the kernel says of an address, for hosts that look at their own code."""


def file_of(address):
    """The file that the page of `address` is mapped from, or "nothing"."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(text, 16) for text in line.split()[0].split("-"))
            if start <= address < end:
                return (line.split(maxsplit=5)[5:] or ["nothing"])[0].strip()
    return "no mapping"


def mappings():
    with open("/proc/self/maps") as maps:
        return sum(1 for _ in maps)
