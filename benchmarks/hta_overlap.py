"""HTA's overlap of every rank of a folder of torch.profiler traces."""

import sys

from hta.trace_analysis import TraceAnalysis

if __name__ == "__main__":
    found = TraceAnalysis(trace_dir=sys.argv[1]).get_comm_comp_overlap(visualize=False)
    for rank, percent in zip(found["rank"], found["comp_comm_overlap_pctg"], strict=True):
        print(rank, percent)
