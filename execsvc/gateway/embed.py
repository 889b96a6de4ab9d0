"""Writes a file as C: embed.py INPUT OUTPUT HEADER NAME."""

import sys

source, target, header, name = sys.argv[1:]
with open(source, "rb") as file:
    data = file.read()
with open(target, "w", encoding="ascii") as file:
    file.write(f'#include "{header}"\n\nconst char {name}[] = {{\n')
    for start in range(0, len(data), 16):
        file.write("    " + " ".join(f"{byte}," for byte in data[start:start + 16]) + "\n")
    file.write(f"}};\nconst size_t {name}_size = sizeof {name};\n")
