# JupyterLab with the whole course. For a CPU:
#   docker build -t minillm .
#   docker run --rm -p 127.0.0.1:8888:8888 minillm
# For an NVIDIA GPU (the driver and the NVIDIA Container Toolkit are on the host; PyTorch brings the rest of CUDA):
#   docker build -t minillm:cuda --build-arg DEVICE=cuda .
#   docker run --rm --gpus all -p 127.0.0.1:8888:8888 minillm:cuda
# The steps are Binder's, which `make binder-check` tries. docs/boxes.md says what else has been tried.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim
ARG DEVICE=cpu

# g++ compiles the CPU kernels, and on a GPU serves Triton; make runs the Makefile's targets; git is for the learner.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 learner \
    && echo 'PATH=/opt/venv/bin:$PATH' > /etc/profile.d/minillm.sh  # JupyterLab's terminals are login shells here

# The environment belongs to the learner: postBuild installs into it, here and again in a devcontainer.
RUN python -m venv /opt/venv && chown -R learner:learner /opt/venv
ENV PATH=/opt/venv/bin:${PATH}
# hadolint ignore=DL3066
USER learner
WORKDIR /home/learner/minillm

# First what seldom changes: the constraints and PyTorch.
COPY --chown=learner:learner constraints.txt ./
COPY --chown=learner:learner binder/requirements.txt binder/
RUN pip install --no-cache-dir -c constraints.txt --upgrade pip \
    && if [ "${DEVICE}" = cuda ]; then sed -i '/^--extra-index-url/d' binder/requirements.txt; fi \
    && pip install --no-cache-dir -r binder/requirements.txt

COPY --chown=learner:learner . .
RUN binder/postBuild

# Progress and the model live in ~/.cache/minillm: mount a volume there to keep them.
EXPOSE 8888
ENTRYPOINT ["binder/start"]
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser", "--log-level=WARN", "--LabApp.log_level=WARN", \
     "--LabApp.default_url=/lab/tree/course/00_start_here.ipynb"]
