"""The rival systems of the paper, one model a file; `idcf.paper.systems` registers them."""
