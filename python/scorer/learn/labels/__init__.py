"""Labels that become known late: maturity curves of outcomes, and the policy that makes labels of them."""
