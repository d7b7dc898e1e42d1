# A saved model behind HTTP: docker build -t idcf . && docker run -p 127.0.0.1:8000:8000 -v ./model:/model:ro idcf
FROM python:3.11-slim-bookworm AS build

# PyTorch without CUDA, which is gigabytes smaller; an empty value takes it from PyPI.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/idcf \
    && /opt/idcf/bin/pip install --no-cache-dir --no-compile -c constraints.txt \
       ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} ".[serve,mcp]"


FROM python:3.11-slim-bookworm

COPY --from=build /opt/idcf /opt/idcf
ENV PATH=/opt/idcf/bin:$PATH \
    HOME=/tmp \
    OMP_NUM_THREADS=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

# nobody: the server writes nothing, and reads the model alone
USER 65534:65534
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
ENTRYPOINT ["idcf"]
CMD ["serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
