"""The systems that the paper compares IDCF with; `idcf.paper.systems` names them."""
