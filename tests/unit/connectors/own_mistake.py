raise RuntimeError("not today")
