"""What the admin API has to know after a conversation."""


def sessions(house):
    return set()


def check(house, before, calls, model):
    pass
