"""`dovetail doctor`: what is here, what works, and what to do about the rest."""
