"""SHA-256 of what is small, by the function that Python itself has.

That of `hashlib` is OpenSSL's, which takes several times less for a byte, and longer to load than engines to open.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256 as sha256
else:
    try:
        if sys.version_info >= (3, 12):
            from _sha2 import sha256 as sha256
        else:
            from _sha256 import sha256 as sha256
    except ImportError:  # a Python without them
        from hashlib import sha256 as sha256
