"""The product's images, built from Debian packages and the wheel: `python -m tools.images --help`.

oci.py packs any image. product.py determines the content of the product's images.
"""
