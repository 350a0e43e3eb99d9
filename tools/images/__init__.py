"""The product's images, built from Debian packages and the wheel: `python -m tools.images --help`.

oci.py packs any image; product.py has the content of ours.
"""
