"""What a rank that is alone decides with all others."""

from torchgraph.verify.rank_agreement import SingleRank


def test_who_is_alone_decides_alone():
    alone = SingleRank()
    assert (alone.any(True), alone.any(False), alone.most(3)) == (True, False, 3)
    assert alone.first(0, None) is None
    assert alone.first(7, "found") == (None, "found")
    assert alone.alike([]) is True
    alone.same("anything", ["a line"])
