"""Images: the CLIP family, which puts images and texts into one space of vectors."""
