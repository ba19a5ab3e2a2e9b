#!/usr/bin/env bash
# Starts the job manager ("manager", with further options of penstock serve), or one of Spark's executors ("executor").
set -euo pipefail

role="${1:-manager}"
shift || true

case "$role" in
manager)
    # What only the running pod knows. Drivers are in this pod; executors belong to it, and go when it goes.
    mkdir -p "$SPARK_CONF_DIR"
    printf '%s %s\n' \
        spark.driver.host "$POD_IP" \
        spark.kubernetes.driver.pod.name "$POD_NAME" \
        spark.kubernetes.namespace "$POD_NAMESPACE" \
        > "$SPARK_CONF_DIR/spark-defaults.conf"
    exec penstock serve "$@"
    ;;
executor)
    # Spark says by variables how an executor is to be started.
    options=()
    while read -r name; do
        options+=("${!name}")
    done < <(compgen -e | grep '^SPARK_JAVA_OPT_' | sort -V || true)
    spark="$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')"
    exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CONF_DIR:-}:${SPARK_CLASSPATH:-}:$spark/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    echo "The argument is $role; it must be manager or executor." >&2
    exit 2
    ;;
esac
