class Schedulers:
    def __init__(self): self.l=[]
    def add(self, o, s):
        if s is not None: self.l.append(s)
    def step(self, loss):
        for s in self.l: s.step()
