"""SHA-256 of what is small, by the function that Python itself has.

That of `hashlib` is OpenSSL's, which takes several times less for a byte, and longer to load than engines to open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256 as sha256
else:
    try:
        from _sha2 import sha256 as sha256
    except ImportError:  # before Python 3.12
        try:
            from _sha256 import sha256 as sha256
        except ImportError:  # another Python
            from hashlib import sha256 as sha256
