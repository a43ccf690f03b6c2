"""Models from the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from kvik.errors import ModelError

WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
# Other layouts of the same weights, and anything in folders.
UNWANTED = ["consolidated*", "*/*"]


def snapshot(repo: str) -> Path:
    """The folder of the model ``org/name``, downloaded where it is not yet in the Hub's cache."""
    try:
        # Here and not above: a local model needs no network client, which takes long to import.
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError as error:
        raise ModelError(
            f"{repo}: models from the Hub need `pip install huggingface_hub`"
        ) from error
    try:
        folder = snapshot_download(repo, allow_patterns=WANTED, ignore_patterns=UNWANTED)
    except GatedRepoError as error:
        raise ModelError(f"{repo}: its terms must be accepted on huggingface.co first") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(f"{repo}: no such path here and no such model on the Hub") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{repo}: no such path here, and the Hub cannot be reached to fetch a model of that "
            "name: see to the network, or give the path of a folder that holds it"
        ) from error
    except Exception as error:
        # The client lets errors of several libraries through (HTTP, TLS, the disk).
        text = " ".join(str(error).split())[:200]
        raise ModelError(f"{repo}: could not be fetched from the Hub ({text})") from error
    return Path(folder)
