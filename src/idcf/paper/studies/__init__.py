"""The studies behind the paper's figures and theorems: each writes rows, and draws them."""
